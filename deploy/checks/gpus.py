"""Whether a server's GPUs are those of the lab file, and whether each is near its NIC."""

import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest

from patchlight.deploy.checks.finding import Finding
from patchlight.deploy.facts import GpuFacts, ServerFacts
from patchlight.testbed.lab.model import Gpu, Nic, Server
from patchlight.testbed.linux.sysfs import Distance, distance


def gpus(server: Server, facts: ServerFacts) -> Iterator[Finding]:
    """NVIDIA's driver, and each GPU that the lab file claims; nothing where there is neither."""
    cards = [address for address, card in facts.pci.items() if card.is_nvidia_gpu]
    if not (server.gpus or cards or facts.driver or facts.gpus):
        return
    if server.gpus and (server.emulated_gpus or facts.gpu_sockets):
        where = f"in {facts.gpu_sockets}" if facts.gpu_sockets else "as the lab file says"
        yield Finding(server.name, "GPUs", True, f"{len(server.gpus)} emulated {where}")
        return
    driver = _driver(server, facts, cards)
    yield driver
    if driver.ok:
        found = claimed_gpus(server, facts)
        for gpu in server.gpus:
            yield _gpu(server, gpu, found.get(gpu.name), facts)
        yield from _pairings(server, found, facts)


def _driver(server: Server, facts: ServerFacts, cards: list[str]) -> Finding:
    def finding(ok: bool | None, found: str, remedy: str = "") -> Finding:
        return Finding(server.name, "NVIDIA driver", ok, found, f"{remedy}, on {server.name}")

    wrong = False if server.gpus else None
    count = f"{len(cards)} GPU{'s' * (len(cards) != 1)}"
    if facts.gpus:
        shown = f"{len(facts.gpus)} GPU{'s' * (len(facts.gpus) != 1)}"
        return finding(True, f"version {facts.driver or 'unknown'}, {shown}")
    if facts.smi_refusal:
        remedy = "restart it if the driver was updated; else install the driver anew"
        return finding(False, f"nvidia-smi: {facts.smi_refusal}", remedy)
    if facts.driver:
        remedy = "install the driver's programs: apt-get install nvidia-smi"
        return finding(wrong, f"version {facts.driver}, without nvidia-smi", remedy)
    if cards:
        return finding(wrong, f"{count} and no driver", "install it: apt-get install nvidia-driver")
    remedy = (
        "see whether it is plugged in (lspci); or, in the lab file, leave gpus out, or write "
        "emulated_gpus: true"
    )
    return finding(wrong, "no GPU of NVIDIA", remedy)


def claimed_gpus(server: Server, facts: ServerFacts) -> Mapping[str, GpuFacts]:
    """Which GPU each one of the lab file is, by name: as an agent finds them."""
    by_uuid = {gpu.uuid: gpu for gpu in facts.gpus}
    by_place = facts.gpus if len(facts.gpus) >= len(server.gpus) else ()
    pairs = zip_longest(server.gpus, by_place[: len(server.gpus)])
    found = {
        gpu.name: by_uuid.get(gpu.uuid) if gpu.uuid else at_place for gpu, at_place in pairs if gpu
    }
    return {name: gpu for name, gpu in found.items() if gpu is not None}


def _gpu(server: Server, gpu: Gpu, found: GpuFacts | None, facts: ServerFacts) -> Finding:
    check = f"GPU {gpu.name}"
    if found is None and gpu.uuid and gpu.uuid.startswith("MIG-"):
        return Finding(server.name, check, None, f"{gpu.uuid} is a part of a GPU")
    if found is None and gpu.uuid:
        there = ", ".join(f"{g.uuid} ({g.model})" for g in facts.gpus)
        remedy = "see whether it is plugged in (lspci), or correct its uuid in the lab file"
        return Finding(server.name, check, False, f"no {gpu.uuid}; there are {there}", remedy)
    if found is None:
        counts = f"{len(facts.gpus)} of {len(server.gpus)} GPUs"
        remedy = f"give each GPU of {server.name} its uuid in the lab file: nvidia-smi -L"
        return Finding(server.name, check, False, f"{counts}, and which is missing?", remedy)
    good = _words(gpu.model) <= _words(found.model)
    said = f"{found.model}, {found.uuid}" + ("" if good else f", not {gpu.model}")
    remedy = "correct its model or uuid in the lab file"
    return Finding(server.name, check, good, said, remedy)


def _words(model: str) -> set[str]:
    return set(re.findall(r"[a-z]+|[0-9]+", model.casefold())) - {"nvidia"}


def _pairings(
    server: Server, found: Mapping[str, GpuFacts], facts: ServerFacts
) -> Iterator[Finding]:
    """How far each GPU's data goes to its NIC; wrong where two pairs had better change."""

    def away(gpu: str | None, nic: Nic) -> Distance | None:
        claimed = found.get(gpu or "")
        card = facts.pci.get(claimed.pci) if claimed else None
        interface = facts.nics.get(nic.interface or nic.name)
        other = facts.pci.get(interface.pci or "") if interface else None
        if card is None or other is None:
            return None
        return distance(card.path, card.numa, other.path, other.numa)

    for nic in server.nics:
        here = away(nic.gpu, nic)
        if nic.gpu is None or here is None:
            continue
        check, words = f"{nic.gpu} and {nic.name}", here.in_words
        for other in server.nics:
            swapped = away(nic.gpu, other)
            if other is nic or swapped is None or swapped >= here:
                continue
            before, after = away(other.gpu, other) or 0, away(other.gpu, nic) or 0
            if swapped + after < here + before:
                found_, remedy = (
                    f"{words}; {other.name} is nearer",
                    (
                        f"in the lab file, give {nic.gpu} of {server.name} the NIC {other.name}"
                        + (f", and {other.gpu} {nic.name}" if other.gpu else "")
                    ),
                )
                yield Finding(server.name, check, False, found_, remedy)
                break
        else:
            yield Finding(server.name, check, True, words)
