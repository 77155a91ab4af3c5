"""What brokers are asked, by a blocking client, and the metadata topic read through it. Read `client` first."""
