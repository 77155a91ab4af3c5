"""Object formats behind RemoteStorageManager."""
