"""A veth pair across two namespaces."""

import os
from collections.abc import Iterator

import pytest

from patchlight.emulation.fabric import links
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.netlink import Netlink


@pytest.fixture
def pair() -> Iterator[tuple[Netlink, Netlink]]:
    """Two namespaces with a veth pair between them, as sockets: ``a`` index 100, ``b`` 100."""
    names = [f"pl.test-{os.getpid()}-{n}.x" for n in ("a", "b")]
    namespaces.prepare_directory()
    with namespaces.kept_namespace():
        for name in names:
            namespaces.create_here(name)
    paths = [namespaces.namespace_path(name) for name in names]
    with Netlink(paths[0]) as a, Netlink(paths[1]) as b:
        with namespaces.opened(paths[1]) as fd:
            near = links.LinkEnd("a", 100, up=True)
            far = links.LinkEnd("b", 100, None, fd)
            a.run([links.add_veth(near, far)])
        b.run([links.set_up(100, "b")])
        yield a, b
    for name in names:
        namespaces.delete(name)
