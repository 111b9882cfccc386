"""What each kind of router does, as rules for nftables.

| kind | mapping of an outbound connection | lets in |
| --- | --- | --- |
| cone | keeps its source port | answers only |
| full | keeps its source port | whatever comes to a port that was used outbound |
| random | another port for each connection | answers only |
| fully-random | the same, drawn by the kernel's own generator | answers only |

All drop what they do not know without a word, as home routers do: where a router answers an
unknown SYN with a RST, holes cannot be punched. None of them turns round what comes from its own
LAN (no hairpinning). What the kernel shows to these hooks of packets within a LAN passes.
"""

from __future__ import annotations

from typing import Final, Literal

RouterKind = Literal["cone", "full", "random", "fully-random"]
# As in the table of pairs; `public` is a machine without a router.
Kind = Literal["public", "cone", "full", "random", "fully-random"]
KINDS: Final[tuple[Kind, ...]] = ("public", "cone", "full", "random", "fully-random")

_MASQUERADE: Final[dict[RouterKind, str]] = {
    "cone": "masquerade",
    "full": "masquerade",
    "random": "masquerade random",
    "fully-random": "masquerade fully-random",
}
# Which machine of the LAN used a port last; its router remembers it for as long as home routers do.
_REMEMBER: Final = "ip protocol tcp update @used { tcp sport timeout 10m : ip saddr }"
_FULL: Final = """
table ip full {
  map used { type inet_service : ipv4_addr; flags dynamic,timeout; size 4096; }
  chain remember {
    type filter hook forward priority filter; policy accept;
    iifname "lan0" oifname "wan0" REMEMBER
  }
  chain inwards {
    type nat hook prerouting priority dstnat; policy accept;
    iifname "wan0" dnat to tcp dport map @used
  }
}
"""


def rules(kind: RouterKind) -> str:
    """For `nft -f`, with the interfaces `lan0` and `wan0`."""
    inwards = 'iifname "wan0" ct status dnat accept' if kind == "full" else ""
    full = _FULL.replace("REMEMBER", _REMEMBER) if kind == "full" else ""
    return f"""
table ip router {{
  chain input {{
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    iifname {{ "lan0", "lo" }} accept
  }}
  chain forward {{
    type filter hook forward priority filter; policy drop;
    ct state invalid drop
    ct state established,related accept
    iifname "lan0" accept
    {inwards}
  }}
  chain outwards {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname "wan0" {_MASQUERADE[kind]}
  }}
}}
{full}"""
