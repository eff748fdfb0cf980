"""The plugin that hands out CDI devices through the engine's Node Resource Interface, without touching its files.

The engine accepts a connection on its NRI socket, and from then on asks its plugins about each container that it
creates. Two streams share the connection (frames.py); over each goes ttrpc (ttrpc.py), which carries protobuf messages
(messages.py). session.py is the plugin's side of the conversation, decision.py what a container gets, support.py which
engines may be served, connection.py the socket and the loop.

The protocol is that of github.com/containerd/nri, package nri.pkg.api.v1alpha1, read in its versions 0.6.1 to 0.12.5.
"""
