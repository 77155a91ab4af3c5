"""Our own questions to brokers: messages and sign-in."""
