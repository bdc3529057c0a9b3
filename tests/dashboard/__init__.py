"""Pictures of the dashboard: made-up clusters, and a browser that looks at them (`make screenshots`)."""
