"""What several test folders share: tiny models made on the spot, and the one real model."""
