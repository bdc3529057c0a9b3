"""The dashboard: pages of HTML, made on the server from the same views as the API."""
