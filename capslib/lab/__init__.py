"""The lab: plan and run trials, keep their records, judge claims by them, and show and publish what came of it."""
