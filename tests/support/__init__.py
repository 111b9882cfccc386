"""What several tests share: waiting, loopback networks, small worlds, programs."""
