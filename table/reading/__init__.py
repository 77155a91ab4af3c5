"""What runs on executors: tasks in, Arrow batches out. Read `read_task` first."""
