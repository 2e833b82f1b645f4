# SPDX-License-Identifier: Apache-2.0
"""Prompts of the demo's tests: the default, and twenty others of different kinds and lengths."""

from __future__ import annotations

from libtorch_neuronx_lite.cli.demo.command import DEFAULT_PROMPT

OTHERS = (
    "Name three prime numbers larger than ten.",
    "Write a haiku about rain.",
    "Explain why the sky is blue, in two sentences.",
    "Translate 'good morning' into French, German and Spanish.",
    "What is 17 plus 25?",
    "List the planets of the solar system in order.",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes.",
    "Write a Python function that reverses a string.",
    "What does the word 'ephemeral' mean?",
    "Tell me a short story about a fox and a crow.",
    "Summarise the water cycle for a child.",
    "Is a tomato a fruit or a vegetable? Why?",
    "Describe the taste of coffee to somebody who never had any.",
    "How do I sort a list of numbers by hand?",
    "Hello!",
    "¿Cuál es la capital de España?",
    "Compare cats and dogs as pets, with one advantage of each.",
    "What year did the first human walk on the Moon, and who was it?",
    "Complete the sentence: The quick brown fox",
)
ALL = (DEFAULT_PROMPT, *OTHERS)
