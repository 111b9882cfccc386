"""`formation trust`: the reputation of peers, as the nodes of a home know it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from formation_p2p.command import flags
from formation_p2p.command.flags import switch
from formation_p2p.command.words import ago, put, say
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import format_milli
from formation_p2p.machine.clock import moment
from formation_p2p.machine.home import Home
from formation_p2p.machine.names import is_name, named, peer_meant
from formation_p2p.state.member_file import learn_names
from formation_p2p.state.trust import Verdict, leave_note, peek
from formation_p2p.trust.core.parameters import TrustParameters
from formation_p2p.trust.core.reputation import Reputation, Standing
from formation_p2p.workload.core.hints import MIN_PEER_CHARS

TRUST_EPILOG: Final = """
\b
Examples:
  formation trust
  formation trust …Zk3nVq7w
  formation trust --wrong …Zk3nVq7w
  formation run --policy "trust>=0.3 & xor" -- ./measure
"""
# Rows of a table: the least and the most trusted are what matters of more.
MAX_ROWS: Final = 100


@dataclass(frozen=True, slots=True)
class _Known:
    """What one node has learnt; its file, which others may write notes into."""

    node: PeerId
    path: Path
    reputation: Reputation


def trust(
    peer: str | None = flags.argument(
        "PEER",
        "Show what the score of this peer is made of: a peer id, the end of one, or a name.",
    ),
    wrong: bool = switch("--wrong", "Report a false result of PEER."),
    forget: bool = switch("--forget", "Reset PEER to a stranger."),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show how far this machine trusts other peers, and why.

    The score is the expected share of good results, from 0 to 1; strangers have 0.5. It comes from
    the tasks that the nodes of this home had run, and a little from reports of peers that worked
    well for them. Experience counts half after a week. Needs no network; a running node stores
    what it learns every second.
    """
    if (wrong or forget) and peer is None:
        raise InvalidInput("peer", "name the one that is meant: formation trust PEER --wrong")
    if wrong and forget:
        raise InvalidInput("forget", "say one thing of a peer: --wrong, or --forget")
    place = Home(home)
    learn_names(place.path)
    known = _known(place)
    meant = None
    if peer is not None:
        if wrong or forget:
            _check_meant(peer, known)
        meant = _meant(peer, known)
        # Those that know the peer; the first where none does.
        known = [each for each in known if _rows(each, meant)] or known[:1]
        if wrong or forget:
            known = _say(meant, known, forget=forget)
    if as_json:
        shown = ((each.node, row) for each in known for row in _shown(each, meant))
        put({"peers": [{"node": node, **asdict(row)} for node, row in shown]})
    elif not known:
        say("formation: no node has run from here yet, so that nothing is known of anyone")
    elif meant is None:
        _show_all(known)
    else:
        for each in known:
            _show(each, meant)


def _known(home: Home) -> list[_Known]:
    found: list[_Known] = []
    for path in sorted(home.path.glob("trust-*.db")):
        index = path.stem.removeprefix("trust-")
        if index.isdecimal():
            own = home.identity(int(index)).peer_id
            found.append(_Known(own, path, peek(path, own)))
    return found


def _check_meant(text: str, known: list[_Known]) -> None:
    """More is asked for where something is to be said of a peer than where it is to be shown: an
    id can be made to end in what few characters it takes. Raises InvalidInput."""
    if not known:
        problem = "no node has run from here yet that could be told; name its home with --home"
        raise InvalidInput("peer", problem)
    if not is_name(text) and len(text.removeprefix("…")) < MIN_PEER_CHARS:
        least = f"the last {MIN_PEER_CHARS} characters of its id"
        raise InvalidInput("peer", f"{text!r} may be another; write {least} at the least")


def _meant(text: str, known: list[_Known]) -> PeerId:
    """Raises InvalidInput for what is neither a peer id nor the end of one that is known, nor the
    name of one."""
    meant = peer_meant(text, {row.peer_id for each in known for row in _rows(each)})
    if meant is not None:
        return meant
    raise InvalidInput("peer", f"{text!r} is not a known peer; see `formation trust`")


def _say(meant: PeerId, known: list[_Known], *, forget: bool) -> list[_Known]:
    """What these nodes know with that."""
    what = Verdict.FORGET if forget else Verdict.WRONG
    for each in known:
        leave_note(each.path, meant, what)
    return [replace(each, reputation=peek(each.path, each.node)) for each in known]


def _rows(known: _Known, meant: PeerId | None = None) -> list[Standing]:
    rows = known.reputation.standings(moment())
    return [row for row in rows if meant in (None, row.peer_id)]


def _shown(known: _Known, meant: PeerId | None) -> list[Standing]:
    """As `_rows`; a stranger too, where it is asked for."""
    if meant is None:
        return _rows(known)
    return [known.reputation.explain(meant, moment())]


def _show_all(known: list[_Known]) -> None:
    from formation_p2p.command.tables import Columns, console, table_of

    rows = [(each.node, row) for each in known for row in _rows(each)]
    if not rows:
        say("formation: nothing is known of anyone yet; scores come with the work that is done")
        return
    shown = rows
    if len(rows) > MAX_ROWS:
        shown = rows[: MAX_ROWS // 2] + rows[-MAX_ROWS // 2 :]
    columns: Columns[tuple[PeerId, Standing]] = {
        "node": lambda each: named(each[0]),
        "peer": lambda each: named(each[1].peer_id),
        "score": lambda each: format_milli(each[1].score_milli),
        "good": lambda each: str(each[1].successes),
        "errors": lambda each: str(each[1].errors),
        "lost": lambda each: str(each[1].lost),
        "wrong": lambda each: str(each[1].wrong),
        "told of by": lambda each: str(len(each[1].heard) or "-"),
        "last seen": lambda each: ago(each[1].seen_unix_s),
    }
    if len(known) == 1:
        del columns["node"]
    console().print(table_of(columns, shown))
    if len(rows) > len(shown):
        say(f"formation: {len(rows) - len(shown)} more are between them; --json has all")


def _show(known: _Known, meant: PeerId) -> None:
    from formation_p2p.command.tables import console, plain_table

    (row,) = _shown(known, meant)
    print(f"peer   {row.peer_id}")
    print(f"node   {known.node}")
    print(f"score  {format_milli(row.score_milli)}, which is the share of good in all this:\n")
    prior_milli = TrustParameters().prior * 1000
    table = plain_table("good", "bad", "of what")
    heard = f"what others tell, {len(row.heard)} of them"
    for good_milli, bad_milli, what in (
        (prior_milli, prior_milli, "what any stranger is taken for"),
        (row.good_milli, row.bad_milli, f"experience: {_in_words(row)}"),
        (row.heard_good_milli, row.heard_bad_milli, heard),
    ):
        table.add_row(f"{good_milli / 1000:.1f}", f"{bad_milli / 1000:.1f}", what)
    console().print(table)
    print()
    for each in row.heard:
        said, voice = format_milli(each.rate_milli), format_milli(each.voice_milli)
        print(f"{named(each.author)} says {said} of it, and is believed {voice}")
    print(f"what it says of others is believed {format_milli(row.voice_milli)}")


def _in_words(row: Standing) -> str:
    if row.seen_unix_s is None:
        return "none"
    counts = {"good": row.successes, "errors": row.errors, "lost": row.lost, "wrong": row.wrong}
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return f"{said} in all, the last {ago(row.seen_unix_s)}"
