#!/usr/bin/python3
"""Writes harbour.txt: short prose about ropes, harbours, lifting, machines and weather.

Pieces are composed from the sentences and word lists below, which were written for windlass. The
same file every time.
"""

import pathlib
import random
import re

PEOPLE = [("Marta", "she", "her"), ("Old Renn", "he", "his"), ("Ilse", "she", "her"),
          ("Tobias", "he", "his"), ("Captain Vroom", "she", "her"), ("Piet", "he", "his"),
          ("Hanne", "she", "her"), ("the rigger", "he", "his"), ("the crane driver", "she", "her"),
          ("Joris", "he", "his"), ("the apprentice", "he", "his"), ("Sanna", "she", "her"),
          ("the harbour master", "she", "her"), ("Aldo", "he", "his"), ("Brit", "she", "her")]

WORDS = {
    "harbour": ["Stonequay", "the inner basin", "Gull Point", "the north dock", "Kettle Bay",
                "the fish quay", "Lower Haven", "the old shipyard", "Saltmarsh Landing", "pier seven"],
    "ship": ["the Petrel", "the Anna Maria", "a coal barge", "the ferry", "the lightship",
             "a three-masted schooner", "the dredger", "the tug Hercules", "a grain ship",
             "the pilot boat", "the Northern Star"],
    "load": ["a boiler", "twelve bales of wool", "the new rudder", "a crate of bearings",
             "two tons of slate", "a church bell", "the spare anchor", "a stack of oak planks",
             "a diesel engine", "forty sacks of flour", "a printing press", "the millstone"],
    "machine": ["the windlass", "the steam crane", "the capstan", "the hand winch",
                "the donkey engine", "the derrick", "the chain hoist", "the pump", "the old gantry"],
    "part": ["the pawl", "the drum", "the brake band", "the main bearing", "the gear train",
             "the hook", "the sheave", "the ratchet", "the crank", "the clutch"],
    "rope": ["hemp rope", "manila line", "wire rope", "the tarred hawser", "a new halyard",
             "the mooring line", "a length of sisal", "the towing cable"],
    "knot": ["a bowline", "two half hitches", "a clove hitch", "a rolling hitch", "a sheet bend",
             "a figure of eight", "a timber hitch", "a reef knot"],
    "weather": ["fog", "a thin rain", "the east wind", "frost", "a falling glass", "low cloud",
                "sleet", "a warm haze", "a gale from the southwest", "still air"],
    "time": ["Before dawn", "At noon", "Toward evening", "On the second day", "After the bell",
             "At slack water", "In the last light", "When the tide turned", "Early on Monday",
             "By four o'clock", "An hour after high water"],
    "number": ["two", "three", "four", "five", "six", "eight", "ten", "twelve", "twenty", "thirty"],
    "colour": ["grey", "rust-red", "black", "pale green", "brown", "slate-blue", "white", "yellow"],
    "tool": ["a marlinspike", "a grease gun", "an iron bar", "a lantern", "a short ladder",
             "a ball of twine", "a file", "a bucket of tar", "a sounding lead"],
    "sound": ["groaned", "ticked", "hummed", "rattled", "sang", "knocked", "hissed", "creaked"],
}

OPENING = [
    "{time}, {weather} lay over {harbour}, and {ship} waited for her berth.",
    "{ship} came into {harbour} with {load} on deck and {weather} behind her.",
    "Nobody at {harbour} had lifted {load} before, so {person} walked around it {number} times.",
    "{time}, {person} oiled {part} of {machine} and looked at the sky.",
    "There were {number} men on the quay and only one good {tool_bare} among them.",
    "The {colour} hull of {ship_bare} showed first, then the mast, then the smoke.",
    "{person} had promised to have {load} ashore by the evening.",
    "It was a quiet week at {harbour}, the kind in which {machine} is cleaned and painted {colour}.",
    "{machine} at {harbour} was older than anyone who worked it.",
    "{weather} had kept {ship} outside for {number} days.",
]
WORK = [
    "{person} passed the line {number} times around the drum and leaned back.",
    "The load rose a hand's breadth and stopped.",
    "{machine} {sound}, took the strain, and began to turn.",
    "Each tooth of {part} fell into its place with a sound like a clock.",
    "\"Slowly,\" said {person}. \"She will come, but she will not be hurried.\"",
    "{person} tied {knot} and tested it with {his} whole weight.",
    "With every turn of the crank {load} came a finger higher.",
    "The rope ran over the sheave, down to the hook, and back again, so that each man lifted a quarter.",
    "{person} held up one hand, and everyone stopped.",
    "Water ran out of the {rope_bare} as it tightened.",
    "Someone had left {tool} on the hatch, and {person} kicked it aside.",
    "The brake smoked a little, as it always did, and held.",
    "\"How much does it weigh?\" asked {person}. \"More than it did yesterday,\" said {other}.",
    "They lowered {load} on to rollers and pushed it the last {number} yards by hand.",
    "{person} counted the turns aloud, and {other} wrote them on the wall with chalk.",
    "A gull sat on {part} until it began to move.",
    "When {ship} rolled, the boom swung out over the water, and {person} let it swing.",
    "It took {number} men on the tackle and one to tell them when.",
    "Nothing broke. {other} said afterwards that this was the best thing one could say of a lift.",
    "{person} put {his} ear to {machine} and listened as a doctor listens to a chest.",
    "The {rope_bare} was {number} fathoms long and had been spliced in {number} places.",
]
TROUBLE = [
    "Then {part} slipped.",
    "{time}, a strand of the {rope_bare} parted with a noise like a whip.",
    "{weather} came in faster than anyone had expected.",
    "The hook caught on the rail, and for a moment {load} hung from a corner.",
    "The pump lost its water, and the engine {sound} and was silent.",
    "\"Let go!\" cried {person}, but the line was already fast around the bollard.",
    "{person} saw it first: the pin of {part} had walked halfway out of its hole.",
    "The tide was leaving, and {ship} had begun to lean.",
    "Somebody shouted, and somebody else shouted something different.",
]
REMEDY = [
    "{person} took {tool}, climbed up, and knocked the pin home.",
    "{other} threw {number} more turns on the drum, and the slipping stopped.",
    "They waited. {weather} passed, as it does, and the water lay flat again.",
    "{person} made fast with {knot}, cut out the bad piece, and spliced what was left.",
    "They took the weight on a second tackle and changed the rope underneath it.",
    "{person} said nothing at all, closed the valve by half, and the shaking went away.",
    "It was {other} who thought of the old capstan, and who remembered where the bars were kept.",
    "{person} sent everyone off the deck and did the rest alone, a notch at a time.",
]
ADVICE = [
    "A rope remembers every sharp edge it has been pulled across.",
    "Never stand in the bight of a line, {person} used to say, and never trust a knot you did not tie.",
    "Two parts of rope halve the pull and double the length to be hauled; nothing is given away.",
    "A machine that is listened to will say what it needs long before it stops.",
    "Grease is cheaper than iron, and patience is cheaper than grease.",
    "The weight does not matter so much as where it hangs.",
    "A falling glass and a rising wind: bring in what you can and tie down what you cannot.",
    "Count the turns going up, and you will know the turns coming down.",
    "What is lifted in haste is set down twice.",
    "If {knot} will do, do not tie {knot2}.",
    "The sea lifts every ship in the harbour and sends no bill.",
    "The friction of three turns will hold what ten men cannot.",
]
WEATHER = [
    "{weather} settled on the roofs and on the {colour} water between the ships.",
    "The wind backed to the north and smelled of snow.",
    "Beyond the mole the waves were {colour}, and nearer in they were only {colour2}.",
    "Rain came across the basin in {number} long steps.",
    "The lamps were lit early, and each had a ring around it.",
    "Toward the west there was a {colour} line under the cloud, no wider than a rope.",
    "It had frozen in the night, and every line was as stiff as a bar.",
    "For a while there was no wind at all, and the flags hung down like washing.",
    "The barometer in the office had fallen by {number} marks since morning.",
]
CLOSING = [
    "{time}, {load} stood on the quay, dry and a little surprised.",
    "{person} wiped {his} hands, hung up {tool}, and went home.",
    "In the book it says only: {load}, landed, no damage.",
    "{ship} left on the next tide, higher in the water than she had come.",
    "Afterwards they drank tea in the shed and spoke of other things.",
    "{machine} cooled slowly, {number} small clicks to the minute.",
    "The {rope_bare} was coiled, clockwise, and hung on its peg.",
    "And that was all that happened at {harbour} that day.",
    "{person} looked back once at {machine}, as one looks at a dog that has done well.",
]
LISTS = [
    "In the locker: {load}, {tool}, {number} shackles, {rope}, and a tin of {colour} paint.",
    "Orders for tomorrow: grease {part}; turn the {rope_bare} end for end; look at {part2} of {machine}; "
    "ask {person} about {load}.",
    "Log. {time}: {ship} alongside. Wind light, {weather}. Lifted {load} in {number} minutes with {machine}. "
    "Checked {part}. All well.",
    "Found wanting at {harbour}: {number} fenders, one fathom of chain, and the key to the {colour} door.",
]
TITLES = ["The lift at {harbour}", "{load}", "{weather}", "What {person} said", "{machine}", "{ship}",
          "A note on {rope}", "{person} and {machine}", "{time}", "Log of {harbour}", "On {knot}"]


class Piece:
    """One piece keeps its people, its ship and its machine."""

    def __init__(self, rng):
        self.rng = rng
        self.person, self.other = rng.sample(PEOPLE, 2)
        self.fixed = {key: rng.choice(WORDS[key]) for key in ("harbour", "ship", "load", "machine", "rope")}
        self.used = set()
        self.named = False  # whether the last sentence was about the person alone

    def word(self, match):
        key = match.group(1)
        if key == "person":
            return self.person[0]
        if key == "other":
            return self.other[0]
        if key == "his":
            return self.person[2]
        bare = key.endswith("_bare")
        key = re.sub(r"_bare$|\d$", "", key)
        word = self.fixed.get(key) or self.rng.choice(WORDS[key])
        if bare:
            return re.sub(r"^(the|a|an) ", "", word)
        if key in ("ship", "load", "rope"):
            # Once spoken of, it is known.
            self.fixed[key] = re.sub(r"^(an?|(?=two|twelve|forty)) ?", "the ", word)
        return word

    def sentence(self, templates):
        template = self.rng.choice([t for t in templates if t not in self.used] or templates)
        self.used.add(template)
        if template.startswith("{person}") and self.named and self.rng.random() < 0.6:
            template = self.person[1].capitalize() + template[len("{person}"):]
        self.named = "{person}" in template or template.startswith(("She ", "He "))
        self.named = self.named and "{other}" not in template
        text = re.sub(r"\{(\w+)\}", self.word, template)
        return re.sub(r'(^"?|[.] "?)([a-z])', lambda m: m.group(1) + m.group(2).upper(), text)

    def paragraph(self, *kinds):
        self.named = False
        return " ".join(self.sentence(kind) for kind in kinds)

    def text(self):
        plans = [
            [(OPENING, WEATHER), (WORK, WORK, WORK, WORK), (TROUBLE, REMEDY, WORK), (CLOSING,)],
            [(OPENING, WORK, WORK), (WEATHER, TROUBLE), (REMEDY, WORK, WORK), (ADVICE, CLOSING)],
            [(ADVICE, ADVICE), (OPENING, WORK, WORK, TROUBLE, REMEDY), (CLOSING,)],
            [(LISTS,), (OPENING, WEATHER, WORK), (WORK, TROUBLE), (REMEDY, CLOSING)],
            [(WEATHER, OPENING), (WORK, WORK, ADVICE), (LISTS, CLOSING)],
            [(OPENING, TROUBLE, REMEDY, WORK), (WEATHER, WORK, WORK, CLOSING, ADVICE)],
        ]
        title = self.sentence(TITLES).rstrip(".")
        paragraphs = [self.paragraph(*kinds) for kinds in self.rng.choice(plans)]
        return "\n\n".join([title.upper(), *paragraphs])


def main():
    rng = random.Random(1)
    pieces, size = [], 0
    while size < 90_000:
        pieces.append(Piece(rng).text())
        size += len(pieces[-1]) + 3
    path = pathlib.Path(__file__).parent / "harbour.txt"
    path.write_text("\n\n\n".join(pieces) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
