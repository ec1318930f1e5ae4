"""How many everyday sentences does the book's model of Tatoeba translate rightly?

    ANNOTATED_DATA=... python benchmarks/12_everyday.py [--model results/tatoeba-en-de] [--out results/12-everyday]

Thirty-three sentences as they stand in phrase books, the first three known to be hard, the others chosen before they
were translated. What is right is a pattern, and may end in a mark of punctuation; one pattern was widened after the
first run, which showed a right answer that it lacked. The record says which of the sentences stand in the training
text word for word. Beam 4, alpha 0.6. Writes run.json and scores.json.
"""

import argparse
import re
import sys
from pathlib import Path

from script import run

from annotated.corpora import load_corpus
from annotated.decoding import load
from annotated.records import Record, about_corpus, about_model

CORPUS = "tatoeba-en-de"
EVERYDAY = {
    "Happy birthday!": "(Alles Gute|Herzlichen Glückwunsch) zum Geburtstag",
    "My name is Anna and I live in Munich.": "(Mein Name ist|Ich heiße) Anna,? und (ich )?(lebe|wohne) in München",
    "Hello, how are you?": "Hallo[,!.]? [Ww]ie geht('s|es|s)( dir| Ihnen| euch)?",
    "Good morning.": "Guten Morgen",
    "Thank you very much.": "(Vielen|Herzlichen|Besten) Dank|Danke (sehr|schön|vielmals)",
    "Where is the station?": "Wo ist der Bahnhof",
    "How much does this cost?": "(Wie ?viel|Was) kostet (das|dies)",
    "I don't understand.": "Ich verstehe (es |das )?nicht|Das verstehe ich nicht",
    "Can you help me?": "(Kannst du|Können Sie|Könnt ihr) mir (bitte )?helfen",
    "What time is it?": "Wie spät ist es( jetzt)?|Wie ?viel Uhr ist es",
    "I'm hungry.": "Ich habe Hunger|Ich bin hungrig",
    "It's raining.": "Es regnet( gerade)?",
    "I love you.": "Ich liebe (dich|euch|Sie)",
    "Do you speak English?": "(Sprichst du|Sprechen Sie|Sprecht ihr) Englisch",
    "My brother is older than me.": "Mein Bruder ist älter als ich",
    "I have two children.": "Ich habe zwei Kinder",
    "The book is on the table.": "Das Buch (ist|liegt|steht) auf dem Tisch",
    "She is reading a newspaper.": "Sie liest (gerade )?eine Zeitung",
    "We are going home.": "Wir (gehen|fahren) (jetzt )?(nach Hause|heim)",
    "He works in a hospital.": "Er arbeitet (in einem|im) Krankenhaus",
    "I would like a cup of coffee.": "Ich (möchte|hätte gerne?) eine Tasse Kaffee( trinken)?",
    "Where do you live?": "Wo (wohnst|lebst) du|Wo (wohnen|leben) Sie|Wo (wohnt|lebt) ihr",
    "Did you sleep well?": "(Hast du|Haben Sie|Habt ihr) gut geschlafen",
    "I saw him yesterday.":
        "Ich habe ihn gestern gesehen|Ich sah ihn gestern|Gestern (habe ich ihn gesehen|sah ich ihn)",
    "The train leaves at eight.":
        "Der Zug (fährt um acht( Uhr)?( ab)?|geht um acht( Uhr)?|verlässt um acht( Uhr)? den Bahnhof)",
    "It's cold today.": "Es ist heute kalt|Heute ist es kalt|Es ist kalt heute",
    "I forgot my keys.": "Ich habe (meine|meinen) Schlüssel vergessen",
    "Please open the window.": "(Bitte )?([Öö]ffne|[Mm]ach|[Öö]ffnen Sie|[Mm]achen Sie)( bitte)? das Fenster( auf)?",
    "They have been waiting for an hour.": "Sie warten (schon |bereits )?(seit einer|eine) Stunde( lang)?",
    "If it rains, we will stay at home.":
        "Wenn es regnet, (bleiben wir|werden wir) (zu Hause|zuhause|daheim)( bleiben)?",
    "I think that he is right.": "Ich (denke|glaube|finde), (dass er [Rr]echt hat|er hat [Rr]echt)",
    "Which one do you want?":
        "Welche[rsn]? (willst|möchtest) du( haben)?|Welche[rsn]? (wollen|möchten) Sie( haben)?|Welche[rsn]? "
        "(wollt|möchtet) ihr( haben)?",
    "My mother can't swim.": "Meine Mutter kann nicht schwimmen",
}


def is_right(german, pattern):
    return re.fullmatch(f"({pattern})[.!?]?", german) is not None


def go(options):
    corpus = load_corpus(CORPUS)
    known = {source for source, _ in corpus.train}
    rows = [{"english": english, "right": pattern, "in training": english in known}
            for english, pattern in EVERYDAY.items()]
    what = {"seed": 0, "model": about_model(options.model), "data": about_corpus(corpus)}
    with Record.begin(options.out, anew=True, **what) as record:
        made = load(options.model).translate(list(EVERYDAY))
        for row, german in zip(rows, made, strict=True):
            row["german"] = german
        count = sum(map(is_right, made, EVERYDAY.values()))
        record.write_scores({"sentences": rows, "right": count})
    print(f"{count} of {len(rows)} are right")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("results/tatoeba-en-de"))
    parser.add_argument("--out", type=Path, default=Path("results/12-everyday"))
    return run(go, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
