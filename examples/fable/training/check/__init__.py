"""Reads stories and says what is wrong with them.

It knows the nouns of the stories' world and the ways of English, but none of the generator's sentences: what a story
says is found in the story.
"""
