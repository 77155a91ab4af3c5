"""Goes with 0.3: what health checks of older images and charts call."""
