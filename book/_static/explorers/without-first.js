// Made by tools/first.py of the model in results/tatoeba-cpu.
((globalThis.annotated ??= {}).first ??= {})["without"] = {"whole":{"said":"Kannst du mir sagen, was du gestern gesehen hast?","cut":0,"sure":0.85173},"cut":0,"less":{"said":"Kannst du gestern Mal Mal Mal Mal gesehen??????","cut":0,"sure":0.47139},"config":{"N":2,"N_decoder":2,"h":4}};
