"""Machines that find each other on a Kademlia DHT and run each other's work."""
