"""GPU packing on Alibaba's trace, against the published results of others
(docs/explanation/performance.md)."""
