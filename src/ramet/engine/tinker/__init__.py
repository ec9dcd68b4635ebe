"""Models behind the Tinker API: a hosted service, or a server of one's own."""
