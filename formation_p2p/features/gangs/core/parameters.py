"""What the owner of a gang decides by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GangParameters:
    """No other peer has to agree with these."""

    # Gangs of one owner at once: each may keep connections with 64 workers.
    max_gangs: int = 64
    # Workers that a gang keeps in mind: as many as a group of tasks.
    max_workers: int = 1024
    # So many workers are asked for each rank. To ask exactly as many as there are ranks takes three
    # times as long where several gangs want the same workers.
    ask_more: float = 1.5
    # Where the nearest to each other are chosen, of more: of three times as many a choice is hardly
    # worse than of all.
    ask_more_by_rtt: float = 3.0
    # An offer that runs out sooner than this is not built on: a commit must reach its worker.
    commit_s: float = 0.3
    # After a try that failed the next one begins within this, drawn evenly from 0 on: with others
    # that want the same workers, each finds another moment. It is this share of the time for which
    # the gang has been waiting, so that little is added to that, up to the last figure.
    back_off_s: float = 0.5
    back_off_share: float = 0.2
    max_back_off_s: float = 8.0
    # A try asks the workers that a search found so lately, and searches anew after that.
    known_s: float = 15.0
    # Where all of these were asked in vain, one may be missing among them: a search begins after
    # so long, half as long again at most, while the tries go on. The waits double up to the above
    # while searches bring none that is new: a gang that waits for room asks little of the DHT.
    search_again_s: float = 2.0
    # A worker that was silent until the wait for it has doubled to this, four times in a row, is
    # gone until it announces itself again.
    silence_s: float = 8.0
    # Where there are not workers enough, discovery is asked again after so long, so many times:
    # workers that have just been started are still announcing themselves,
    look_again_s: float = 1.0
    looks: int = 3
    # and where a member was lost, its machine may be starting anew.
    looks_for_lost: int = 15
