"""Text from language models: a tokenizer, a session that holds the state, and the choice of tokens.

``generate.py`` has the road from a prompt to a text, ``transcribe.py`` that from a waveform. Each
of the other files has a part of it: ``tokenizer.py`` the text of tokens, ``sampling.py`` the choice
of one, ``decoder.py`` what the inputs and outputs of a model are for, ``speed.py`` what it cost.
"""
