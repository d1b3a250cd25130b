from capslib.cli import main

main()
