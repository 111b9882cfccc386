"""Routers of every common kind, in network namespaces, and nodes behind them
(docs/explanation/reach.md)."""
