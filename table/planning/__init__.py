"""From options to tasks: what is wanted, what the tier holds, who reads which part. Read `planner` first."""
