"""A real cluster of two nodes on this one machine, for the walk of a new user.

    hack/nodes up IMAGE.tar...         starts it, prints how to use it
    hack/nodes load IMAGE.tar...       gives every node an image
    hack/nodes down                    ends it and puts everything back

etcd, kube-apiserver, controller-manager, scheduler and CoreDNS are ordinary processes. A node is a
process with namespaces of its own (mounts, network, process ids, host name) that runs containerd,
kubelet and kube-proxy: when it is killed, its pods, mounts, interfaces and packet rules are gone.
What the kernel keeps outside of namespaces, control groups and four sysctls, `down` puts back.

    10.99.0.254   the machine: API server, names, whatever else the pods shall reach
    10.99.0.1-2   the nodes n1 and n2, on one bridge with the machine
    10.88.N.0/24  the pods of node N; the machine has routes to them and to the services
    10.96.0.0/24  the services

It needs root, Debian's packages (unpacked, not installed) and control groups of version 1 or 2.
"""
