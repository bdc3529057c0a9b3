"""Who may use the API, over which socket, how often; and what is written down of it."""
