"""Reach: where others dial this node, and how two nodes behind routers come together."""
