"""The program's reports on a node: status, diagnosis, support bundle, node condition, events and metrics."""
