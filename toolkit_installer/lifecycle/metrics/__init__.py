"""What Prometheus is told: what is counted, how it is written, and where to."""
