"""The plugin that assigns CDI devices through the engine's Node Resource Interface (NRI), without changing its files.

The engine accepts a connection on its NRI socket, and from then on sends its plugins a request for each container that
it creates. Two streams share the connection; over each goes ttrpc, which carries protobuf messages. session.py is the
plugin's side of the protocol, decision.py decides what a container gets and which engines may be served, connection.py
is the socket and the loop.

The protocol is that of github.com/containerd/nri, package nri.pkg.api.v1alpha1, read in its versions 0.6.1 to 0.12.5.
"""
