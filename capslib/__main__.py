from capslib.lab.cli import main

main()
