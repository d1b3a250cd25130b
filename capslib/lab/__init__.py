"""The lab: plan and run trials, keep their records, judge claims by them, and publish them."""
