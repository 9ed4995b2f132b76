"""What projections look like in JSON."""

from __future__ import annotations

from runfacts.domain.projecting import Lag, Lengths, Rebuilt, Retried, StatisticsLine, StopProof
from runfacts.infrastructure.cli.shapes import Shape


def lag_shape(lag: Lag) -> Shape:
    """How far something is behind."""
    return {"facts": lag.facts, "ms": lag.ms}


def statistics_shape(line: StatisticsLine) -> Shape:
    """An item of ``stats``."""
    return {
        "group": line.group,
        "created": line.created,
        "succeeded": line.succeeded,
        "failed": line.failed,
        "cancelled": line.cancelled,
        "timed_out": line.timed_out,
        "attempts": line.attempts,
        "retries": line.retries,
        "lost": line.lost,
        "cancel_requests": line.cancel_requests,
        "duration": _lengths(line.durations),
        "execution": _lengths(line.executions),
        "cancellation": _lengths(line.cancellations),
        "recovery": _lengths(line.recoveries),
    }


def _lengths(lengths: Lengths) -> Shape:
    return {"count": lengths.count, "mean_ms": lengths.mean_ms, "longest_ms": lengths.longest_ms}


def stop_proof_shape(item: StopProof) -> Shape:
    """An item of ``stats --stops``."""
    return {
        "run_id": item.run_id,
        "project": item.project,
        "attempt_id": item.attempt_id,
        "kind": item.kind.value,
        "requested_by_type": item.requested_by.type.value,
        "requested_by_id": item.requested_by.id,
        "requested_at_ms": item.requested_at_ms,
        "delivery": item.delivery,
        "result": item.result,
        "escalation": item.escalation,
        "delivered_at_ms": item.delivered_at_ms,
        "status": item.status,
        "ended_at_ms": item.ended_at_ms,
        "evidence": item.evidence,
    }


def rebuilt_shape(rebuilt: Rebuilt) -> Shape:
    """What ``rebuild`` did with one projection."""
    return {
        "projection": rebuilt.projection.value,
        "facts": rebuilt.facts,
        "seconds": round(rebuilt.seconds, 3),
        "set_aside": rebuilt.set_aside,
        "unknown": rebuilt.unknown,
    }


def retried_shape(retried: Retried) -> Shape:
    """What ``rebuild --set-aside`` did with one projection."""
    return {"projection": retried.projection.value, "applied": retried.applied, "left": retried.left}
