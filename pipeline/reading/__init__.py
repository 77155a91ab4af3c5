"""What runs on executors: tasks in, Arrow batches out."""
