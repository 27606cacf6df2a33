"""Draws sentence trees: the verb, its subject and objects, the tense, and the subordinate clauses.

English must determine everything that German expresses, so that each sentence has one translation. The danger is
attachment: in *saw the dog that Anna found yesterday*, *gestern* could be in either clause. So nothing follows a
clause inside another clause (a complement, an adverbial clause, a relative clause on the last phrase). All English
words after its start belong to the innermost clause.
"""

from __future__ import annotations

from collections.abc import Sequence

from hf_capsule_mt.data.synthetic import lexicon
from hf_capsule_mt.data.synthetic.lexicon import ADJECTIVES_OF, BY_GERMAN, NOUNS_OF, Noun
from hf_capsule_mt.data.synthetic.phrases import PEOPLE, PhraseGrammar
from hf_capsule_mt.data.synthetic.tree import Clause, Phrase, Predicate, Tree
from hf_capsule_mt.data.synthetic.verbs import VERBS, VERBS_OF_OBJECT, VERBS_OF_SUBJECT, Verb

Joined = tuple[int, str, str, Clause]  # tag of the conjunction, English, German, the clause after it

_FEMININE_JOBS = tuple(noun for noun in PEOPLE if noun.feminine)
_NOUNS_WITH_ADJECTIVES = tuple(noun for noun in lexicon.NOUNS if ADJECTIVES_OF[noun] and noun.kind != "ambiguous")
_TRANSITIVE = [verb for verb in VERBS if verb.object is not None and not verb.complement]
# "the goat after which she looked" is not English.
_RELATIVE = [verb for verb in _TRANSITIVE if verb.object is not None and verb.object.en != "after"]
_COMPARABLE = [adjective for adjective in lexicon.ADJECTIVES if adjective.en_comparative != "-"]
_PLAIN_OBJECT = [verb for verb in _TRANSITIVE if verb.object is not None and verb.object.en + verb.object.de == ""]
# Verbs whose object can be asked for: the English verb alone, without its object, must have one translation.
_ASKABLE = [verb for verb in _PLAIN_OBJECT if sum(other.key == verb.key for other in _TRANSITIVE) == 1]
_ASK_WHO = [verb for verb in _ASKABLE if BY_GERMAN["Mann"] in verb.objects]
_ASK_WHAT = [verb for verb in _ASKABLE if BY_GERMAN["Mann"] not in verb.objects and not verb.indirect]
_DEFINITE = ("the", "this", "my", "our", "his", "her", "their", "name")
_STATIVE = """know like love need have belong fear trust hope remember see forget notice believe decide promise live
    find miss lose think""".split()
_NO_PASSIVE = "like have know need lose miss spend need wear see catch".split()
_NOUNS_AFTER_WHOSE = lexicon.select("Mutter Vater Schwester Bruder Hund Katze Freund Kind Tante Onkel Nachbar".split())
_CONJUNCTIONS = {
    "past": [
        *[("because", "weil"), ("although", "obwohl"), ("when", "als"), ("while", "während"), ("before", "bevor")],
        *[("after", "nachdem")],
    ],
    "present": [("because", "weil"), ("although", "obwohl"), ("when", "wenn"), ("if", "wenn"), ("while", "während")],
}
# English needs a comma after these at the start of a sentence, so they are not fronted.
_COMPANY = ("with", "without", "for")
_COMPLEMENTS = {"that": ("that", "dass"), "if": ("if", "ob"), "inf": ("", "")}


class Grammar(PhraseGrammar):
    """Draws sentence trees. ``draw(budget)`` gives a tree of about ``budget`` English words."""

    def draw(self, budget: int) -> Tree:
        self._roles = []
        if budget >= 12 and self._chance(0.2 if budget < 22 else 0.75):
            first = int(budget * (0.4 + 0.2 * self._random()))
            left = self._main_clause(first)
            joiner = (self._tag("conjunction"), *self._pick([("and", "und"), ("but", "aber")]))
            return Tree([left, self._main_clause(budget - first - 1)], joiner, self._roles)
        if budget <= 18 and self._chance(0.12):
            return Tree([self._question(budget)], None, self._roles)
        return Tree([self._main_clause(budget)], None, self._roles)

    # -- main clauses and questions ----------------------------------------------------------------------------------

    def _main_clause(self, budget: int) -> Clause:
        tense = "past" if self._chance(0.55) else "present"
        if budget >= 11 and self._chance(0.3 if budget < 18 else 0.6):
            share = max(5, int(budget * (0.35 + 0.2 * self._random())))
            front = self._adverbial_clause(share, tense)
            clause = self._clause(budget - share, tense)
            clause.front, clause.front_clause = "none", front
            return clause
        clause = self._clause(budget, tense)
        target = clause.object
        if clause.time is not None and self._chance(0.5):
            clause.front = "time"
        elif len(clause.adjuncts) == 1 and clause.adjuncts[0].en not in _COMPANY and self._chance(0.4):
            clause.front = "adjuncts"
        elif (
            target is not None
            and target.determiner == "this"
            and target.relative is None
            and clause.verb in _PLAIN_OBJECT
            and clause.subject.kind != "pair"
        ):
            clause.front = "object"
        return clause

    def _question(self, budget: int) -> Clause:
        tense = "past" if self._chance(0.6) else "present"
        kind = self._pick(["yes", "yes", "who", "whom", "what", "why", "when", "where"])
        if kind in ("whom", "what"):
            verb = self._pick(_ASK_WHO if kind == "whom" else _ASK_WHAT)
            clause = self._clause(budget, tense, verb=verb, style="question")
            assert clause.object is not None
            clause.object = Phrase(clause.object.tag, "who" if kind == "whom" else "what", human=kind == "whom")
            clause.front = "object"
        elif kind == "who":
            asked = Phrase(self._tag("subject"), "who", human=True)
            clause = self._clause(budget, tense, subject=asked, style="question")
        else:
            clause = self._clause(budget, tense, style="question")
            clause.front = "none"
            if kind == "where" and clause.verb is not None and not clause.adjuncts:
                goes = clause.verb.complement == "to"
                tag = clause.direction[0] if clause.direction else self._tag("place")
                clause.wh, clause.direction = (tag, "where", "wohin" if goes else "wo"), None
            elif kind in ("why", "when") and clause.time is None:
                clause.wh = (
                    self._tag("reason" if kind == "why" else "time"),
                    kind,
                    "warum" if kind == "why" else "wann",
                )
        clause.question = True
        return clause

    # -- any clause --------------------------------------------------------------------------------------------------

    def _clause(
        self,
        budget: int,
        tense: str,
        *,
        subject: Phrase | None = None,
        verb: Verb | None = None,
        head: Noun | None = None,
        style: str = "free",
        may_add_clause: bool = True,
    ) -> Clause:
        """A clause with a random verb, in ``past``, ``present``, ``pluperfect`` or ``infinitive``.

        ``subject`` is a phrase drawn before, and ``head`` is its noun. ``style="question"`` leaves out everything that
        does not fit a question. ``may_add_clause=False`` allows no subordinate clause at the end.
        """
        if verb is None and subject is None and style == "free" and tense in _CONJUNCTIONS and self._chance(0.12):
            return self._copula(tense, budget)
        if verb is None:
            options = VERBS_OF_SUBJECT[head or BY_GERMAN["Mann"]] if subject is not None else VERBS
            small = budget < 7 or not may_add_clause
            verb = self._pick(options)
            while small and verb.complement in _COMPLEMENTS:
                verb = self._pick(options)
        room = budget - 3 - (2 if verb.object else 0) - (3 if verb.indirect or verb.complement in ("to", "at") else 0)
        extends = verb.complement in _COMPLEMENTS
        last_clause_budget = 0
        if extends:
            last_clause_budget = max(4, room)
        elif may_add_clause and room >= 4 and self._chance(0.45 if room < 7 else 0.85):
            last_clause_budget = room - int(self._random() * 3)
        room -= last_clause_budget
        if subject is None:
            if self._draws_passive(verb, tense, style):
                return self._passive(verb, room + last_clause_budget, may_add_clause)
            subject = self._subject(verb.subjects, room)
            if (
                subject.kind == "noun"
                and subject.owner is None
                and last_clause_budget >= 9
                and not extends
                and self._chance(0.35)
            ):
                subject.relative = self._relative(subject, 5 + int(self._random() * 3), may_add_clause=False)
                last_clause_budget -= 6
        clause = Clause(self._tag("verb"), verb, subject, tense)
        if verb.object is not None:
            clause.object = self._object(verb.objects, room, subject)
        if verb.indirect is not None:
            clause.indirect = self._object(PEOPLE, 0, subject, "indirect object")
        if verb.complement in ("to", "at"):
            clause.direction, clause.place_needed = self._direction(verb.complement == "to"), verb.complement == "at"
        self._draw_tense_and_modal(clause, style)
        self._negate(clause, style)
        self._add_adjuncts(clause, room, ends=not last_clause_budget)
        if last_clause_budget >= 4:
            self._add_last_clause(clause, last_clause_budget)
        return clause

    def _copula(self, tense: str, budget: int) -> Clause:
        """A clause with *be*: X is old, X is older than Y, or X is a doctor."""
        kind = self._random()
        if kind < 0.2:
            while True:
                subject = self._subject(PEOPLE, 0)
                if subject.sex and not subject.plural:
                    break
                del self._roles[subject.tag :]
            predicate = Predicate(self._tag("predicate"), profession=self._pick(_FEMININE_JOBS))
        elif kind < 0.5:
            adjective = self._pick(_COMPARABLE)
            subject = self._noun_phrase(self._pick(NOUNS_OF[adjective]), "subject", 0, subject=True)
            predicate = Predicate(self._tag("predicate"), adjective=adjective)
            predicate.than_tag = self._tag("comparison")
            predicate.than = self._article_phrase(self._pick(NOUNS_OF[adjective]), predicate.than_tag)
        else:
            subject = self._noun_phrase(self._pick(_NOUNS_WITH_ADJECTIVES), "subject", budget - 4, subject=True)
            assert subject.noun is not None
            predicate = Predicate(self._tag("predicate"), adjective=self._pick(ADJECTIVES_OF[subject.noun]))
            predicate.degree = self._pick(lexicon.DEGREES) if self._chance(0.5) else None
        clause = Clause(self._tag("verb"), None, subject, tense, predicate=predicate)
        if budget >= 12:
            clause.trailing = self._adverbial_clause(budget - 5, tense)
        return clause

    def _draws_passive(self, verb: Verb, tense: str, style: str) -> bool:
        fits = (
            verb in _PLAIN_OBJECT and verb.object is not None and verb.object.case == "acc" and verb.indirect is None
        )
        return fits and tense == "past" and style == "free" and verb.en.base not in _NO_PASSIVE and self._chance(0.15)

    def _passive(self, verb: Verb, room: int, may_add_clause: bool) -> Clause:
        subject = self._noun_phrase(self._noun(verb.objects), "subject", room, subject=True)
        clause = Clause(self._tag("verb"), verb, subject, "passive past")
        clause.agent = self._subject(verb.subjects, 0, "agent", pronouns=False)
        if room >= 6 and may_add_clause:
            clause.trailing = self._adverbial_clause(room, "past")
        elif room >= 2:
            clause.time = self._adverb("time", lexicon.TIMES["past"])
        return clause

    def _draw_tense_and_modal(self, clause: Clause, style: str) -> None:
        """Draws perfect, progressive, a modal or a preference, where the clause allows them."""
        assert clause.verb is not None
        progresses = clause.verb.en.base not in _STATIVE
        willing = ["want"] * clause.subject.human
        chance = self._random()
        if clause.tense == "past":
            if chance < 0.1 and progresses:
                clause.tense = "progressive past"
            elif chance < 0.25:
                # "had to" has no question form, and no negation with "not".
                clause.modal = self._pick(["can", *willing, "may"] + ["must"] * (style != "question"))
        elif clause.tense == "present":
            if chance < 0.12 and progresses:
                clause.tense = "progressive"
            elif chance < 0.32:
                clause.tense = "perfect"
            elif chance < 0.55:
                clause.modal = self._pick(["can", "must", *willing, "should", "may", "will", "will"])
            elif chance < 0.63 and progresses and clause.subject.human and style == "free":
                likes = self._pick([("like", "gern"), ("prefer", "lieber")])
                clause.preference = (self._tag("preference"), *likes)

    def _negate(self, clause: Clause, style: str) -> None:
        verb, target = clause.verb, clause.object
        allowed = style == "free" and clause.tense not in ("infinitive", "pluperfect") and not clause.preference
        if not allowed or clause.subject.determiner == "no" or (clause.modal == "must" and clause.tense == "past"):
            return
        if not self._chance(0.13):
            return
        assert verb is not None
        fused = clause.modal == "can" and clause.tense == "present"  # "cannot" is one word
        if target is not None and target.kind == "noun" and target.determiner not in _DEFINITE:
            if target.determiner in ("a", "bare") and verb.object is not None and verb.object.case == "acc":
                clause.kein = not verb.object.de
            if not clause.kein:
                target.determiner = "the"
        if fused:
            clause.negation = clause.verb_tag
        elif clause.kein and target is not None:
            clause.negation = target.tag
        else:
            clause.negation = self._tag("negation")

    def _add_adjuncts(self, clause: Clause, room: int, ends: bool) -> None:
        """Adverbs and prepositional phrases for about ``room`` words."""
        assert clause.verb is not None
        finite = clause.tense != "infinitive"
        negated = clause.negation is not None
        if finite and not negated and clause.preference is None and clause.tense != "pluperfect" and self._chance(0.2):
            if clause.tense == "perfect":
                clause.mid = self._adverb("adverb", lexicon.PERFECT_MIDS)
            elif not clause.modal and "progressive" not in clause.tense and clause.subject.determiner != "no":
                clause.mid = self._adverb("adverb", lexicon.MIDS)
        if room >= 1 and finite and clause.tense not in ("perfect", "pluperfect") and self._chance(0.55):
            clause.time = self._adverb("time", lexicon.TIMES[self._time_of(clause)])
            room -= 2
        kinds = ["occasion"] + ["company"] * clause.subject.human + ["place", "spot"] * (clause.direction is None)
        while room >= 2 and not negated and kinds and self._chance(0.7):
            kind = self._pick(kinds)
            kinds = [other for other in kinds if other != kind and {other, kind} != {"place", "spot"}]
            clause.adjuncts.append(self._adjunct(kind))
            room -= 3
        if (
            room >= 1
            and not negated
            and clause.subject.human
            and clause.verb.en.base not in _STATIVE
            and self._chance(0.5)
        ):
            options = [entry for entry in lexicon.MANNERS if entry[0] != "together" or clause.subject.plural]
            clause.manner = self._adverb("manner", options)

    def _time_of(self, clause: Clause) -> str:
        if "past" in clause.tense:
            return "past"
        return "future" if clause.modal in ("must", "should", "will", "may") else "present"

    # -- subordinate clauses -----------------------------------------------------------------------------------------

    def _add_last_clause(self, clause: Clause, budget: int) -> None:
        """Adds the last clause: a complement, a relative clause on the object, or an adverbial clause."""
        assert clause.verb is not None
        complement = clause.verb.complement
        tense = "past" if "past" in clause.tense or clause.tense == "pluperfect" else "present"
        if clause.tense == "infinitive":
            tense = self._pick(["past", "present"]) if complement != "if" else "present"
        if complement == "inf":
            controlled = self._clause(budget - 1, "infinitive", subject=clause.subject, head=clause.subject.noun)
            clause.trailing = (self._tag("infinitive"), "", "", controlled)
            return
        if complement in _COMPLEMENTS:
            tag = self._tag("conjunction")
            clause.trailing = (tag, *_COMPLEMENTS[complement], self._clause(budget - 1, tense))
            return
        target = clause.object
        last = clause.indirect is None and not (clause.direction or clause.adjuncts or clause.manner or clause.time)
        if target is not None and target.kind == "noun" and last and not clause.kein and target.owner is None:
            assert target.noun is not None
            thing = target.noun not in PEOPLE and ADJECTIVES_OF[target.noun] and not target.plural
            if thing and budget <= 7 and self._chance(0.6) and target.noun.kind not in ("animal", "mount", "bird"):
                clause.trailing = self._because_it(target.noun, tense)
                return
            if self._chance(0.6):
                target.relative = self._relative(target, budget)
                return
        if clause.subject.human and clause.subject.kind != "relative" and budget >= 6 and self._chance(0.2):
            tag = self._tag("conjunction")
            purpose = self._clause(budget - 2, "infinitive", subject=clause.subject, head=clause.subject.noun)
            clause.trailing = (tag, "in order", "um", purpose)
            return
        clause.trailing = self._adverbial_clause(budget, tense)

    def _adverbial_clause(self, budget: int, tense: str) -> Joined:
        tag = self._tag("conjunction")
        english, german = self._pick(_CONJUNCTIONS[tense])
        return tag, english, german, self._clause(budget - 1, "pluperfect" if english == "after" else tense)

    def _because_it(self, noun: Noun, tense: str) -> Joined:
        """*because it was warm*: the German pronoun has the gender of the German noun."""
        tag = self._tag("conjunction")
        subject = Phrase(self._tag("subject"), "it", gender=noun.gender)
        predicate = Predicate(self._tag("predicate"), adjective=self._pick(ADJECTIVES_OF[noun]))
        return tag, "because", "weil", Clause(self._tag("verb"), None, subject, tense, predicate=predicate)

    def _relative(self, head: Phrase, budget: int, may_add_clause: bool = True) -> Clause:
        """A relative clause about ``head``, which is its subject, its object, or the owner of its subject."""
        noun = head.noun
        assert noun is not None
        tense = "past" if self._chance(0.6) else "present"
        subject_verbs: Sequence[Verb] = [] if noun.kind == "ambiguous" else VERBS_OF_SUBJECT.get(noun, [])
        object_verbs = [verb for verb in VERBS_OF_OBJECT.get(noun, []) if verb in _RELATIVE]
        kind = self._random()
        if head.human and kind < 0.15:
            owned = self._pick(_NOUNS_AFTER_WHOSE)
            slot = "p" if head.plural else noun.gender
            subject = Phrase(
                self._tag("subject"), "noun", owned, gender=slot, determiner="whose", human=owned in PEOPLE
            )
            return self._clause(budget, tense, subject=subject, head=owned, may_add_clause=may_add_clause)
        pronoun = Phrase(
            self._tag("relative pronoun"), "relative", noun, head.plural, gender=noun.gender, human=head.human
        )
        if subject_verbs and (not object_verbs or kind < 0.6):
            return self._clause(budget, tense, subject=pronoun, head=noun, may_add_clause=may_add_clause)
        verb = self._pick(object_verbs)
        clause = self._clause(budget, tense, verb=verb, may_add_clause=may_add_clause)
        if clause.tense == "passive past":
            clause.tense, clause.subject, clause.agent = "past", clause.agent or clause.subject, None
        clause.object, clause.front, clause.kein = pronoun, "object", False
        return clause
