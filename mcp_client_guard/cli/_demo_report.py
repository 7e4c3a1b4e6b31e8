"""What `mcp-guard demo` says of an incident: whether the answer was an honest one, and what became of the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen

from mcp_client_guard import CallSettled, Discontinuity, Outcome, Resumed

from ._demo_host import Account
from ._incidents import Incident


@frozen
class Finding:
    """One incident on one transport."""

    incident: Incident
    account: Account
    executed: Sequence[str]
    """The server's own ledger."""

    @property
    def wrong_answer(self) -> bool:
        return self.account.answer not in (None, self.incident.answer)

    @property
    def missing(self) -> int:
        """Messages that the caller of an answered call should have got."""
        return len(set(self.incident.messages) - set(self.account.messages))

    @property
    def repeated(self) -> int:
        return len(self.account.messages) - len(set(self.account.messages))

    @property
    def loss_reported(self) -> bool:
        return any(isinstance(event, Discontinuity) for event in self.account.events)

    @property
    def silent_loss(self) -> bool:
        """Something is missing, and nobody told the caller."""
        told = self.account.in_doubt is not None or self.loss_reported
        return self.wrong_answer or (self.missing > 0 and not told)

    @property
    def ran_twice(self) -> bool:
        return len(self.executed) > 1

    @property
    def honest(self) -> bool:
        """The right answer, or the word that there is none; all else is there or reported; it ran once."""
        answered = self.account.in_doubt is not None or self.account.answer == self.incident.answer
        return answered and not (self.silent_loss or self.repeated or self.ran_twice)

    @property
    def got(self) -> str:
        account = self.account
        if account.in_doubt is not None:
            return "told: in doubt"
        if account.answer is None:
            return f"an error: {account.error}"
        return f'"{account.answer}"' + (" (2nd call)" if account.calls > 1 else "")

    @property
    def ran(self) -> str:
        return f"{self.incident.tool} x{len(self.executed)}"

    @property
    def lost_or_repeated(self) -> str:
        word = "reported" if self.loss_reported else "unsaid"
        found = []
        if self.account.in_doubt is not None:
            found.append("answer, reported")
        elif self.wrong_answer:
            found.append(f"answer, {word}")
        if self.missing and self.account.in_doubt is None and not self.wrong_answer:
            found.append(f"{self.missing} messages, {word}")
        if self.repeated:
            found.append(f"{self.repeated} messages repeated")
        if self.ran_twice:
            found.append("call repeated")
        return "; ".join(found) or "nothing"

    @property
    def evidence(self) -> str:
        """The guard's judgement on the last resume; without one, why the call has its outcome."""
        resumes = [event.evidence for event in self.account.events if isinstance(event, Resumed)]
        if resumes:
            return f"{resumes[-1].grade.name}: {resumes[-1].reason}"
        settled = [e for e in self.account.events if isinstance(e, CallSettled) and e.tool is not None]
        doubts = [event.reason for event in settled if event.outcome is Outcome.IN_DOUBT]
        return f"no resume: {doubts[-1]}" if doubts else "no resume"

    def as_json(self, *, with_evidence: bool) -> dict[str, Any]:
        account = self.account
        found: dict[str, Any] = {
            "honest": self.honest,
            "answer": account.answer,
            "in_doubt": account.in_doubt.as_json() if account.in_doubt else None,
            "error": account.error,
            "calls_made": account.calls,
            "executions": len(self.executed),
            "messages_missing": self.missing,
            "messages_repeated": self.repeated,
            "loss_reported": self.loss_reported,
        }
        if with_evidence:
            found["evidence"] = self.evidence
        return found


@frozen
class Pair:
    """One incident on both transports."""

    incident: Incident
    sdk: Finding
    guard: Finding


@frozen
class Report:
    sdk_version: str
    pairs: Sequence[Pair]
    seconds: float

    @property
    def all_honest(self) -> bool:
        return all(pair.guard.honest for pair in self.pairs)

    def as_json(self) -> dict[str, Any]:
        return {
            "sdk_version": self.sdk_version,
            "seconds": round(self.seconds, 1),
            "incidents": [
                {
                    "name": pair.incident.name,
                    "title": pair.incident.title,
                    "what_happens": pair.incident.what_happens,
                    "tool": pair.incident.tool,
                    "true_answer": pair.incident.answer,
                    "sdk": pair.sdk.as_json(with_evidence=False),
                    "guard": pair.guard.as_json(with_evidence=True),
                }
                for pair in self.pairs
            ],
            "summary": {
                "incidents": len(self.pairs),
                "sdk": _counts(pair.sdk for pair in self.pairs),
                "guard": _counts(pair.guard for pair in self.pairs),
            },
        }

    def as_text(self) -> str:
        lines: list[str] = []
        for number, pair in enumerate(self.pairs, start=1):
            lines.append(f"{number}. {pair.incident.title}: {pair.incident.what_happens}.")
            lines.append(_line("SDK", pair.sdk, ""))
            lines.append(_line("guard", pair.guard, pair.guard.evidence))
            lines.append("")
        return "\n".join([_COLUMNS, "", *lines, self._closing()])

    def _closing(self) -> str:
        total = len(self.pairs)
        sdk, guard = _counts(p.sdk for p in self.pairs), _counts(p.guard for p in self.pairs)
        return (
            f"Of {total} incidents, the caller had an honest answer in {sdk['honest']} through the SDK's "
            f"transport and in {guard['honest']} through the guard.\n"
            f"Wrong answers: SDK {sdk['wrong_answers']}, guard {guard['wrong_answers']}. "
            f"Lost and unsaid: SDK {sdk['silent_losses']}, guard {guard['silent_losses']}. "
            f"Executed twice: SDK {sdk['executed_twice']}, guard {guard['executed_twice']}. "
            f"({self.seconds:.0f} s)"
        )


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    every = list(findings)
    return {
        "honest": sum(f.honest for f in every),
        "in_doubt": sum(f.account.in_doubt is not None for f in every),
        "wrong_answers": sum(f.wrong_answer for f in every),
        "silent_losses": sum(f.silent_loss for f in every),
        "executed_twice": sum(f.ran_twice for f in every),
    }


def _row(side: str, verdict: str, got: str, ran: str, lost: str, evidence: str) -> str:
    return f"   {side:<6} {verdict:<11} {got:<32} {ran:<11} {lost:<22} {evidence}".rstrip()


_COLUMNS = _row("", "", "the caller got", "server ran", "lost or repeated", "the guard's evidence")


def _line(side: str, finding: Finding, evidence: str) -> str:
    verdict = "honest" if finding.honest else "NOT HONEST"
    return _row(side, verdict, finding.got, finding.ran, finding.lost_or_repeated, evidence)
