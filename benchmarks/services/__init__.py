"""Requests to services: through one hop, beside other proxies, and while replicas are killed."""
