"""How a conversation becomes tokens: the marks, the tokenizer and the chat template that says the same in Jinja."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BEGIN, USER, ASSISTANT, END = "<|begin|>", "<|user|>", "<|assistant|>", "<|end|>"
MARKS = (BEGIN, USER, ASSISTANT, END)
VOCABULARY = 3072

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<|user|>' + message['content'] | trim + '<|end|>' }}"
    "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] | trim + '<|end|>' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Messages of other roles are passed over: the model knows no instructions but requests."""


def train(texts):
    """A byte-level BPE of our own; the marks come first, so that their ids are 0 to 3."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=list(MARKS), show_progress=False,
                                                             initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))])
    return tokenizer


def encode(tokenizer, turns):
    """The ids of a conversation and, for each, whether it is to be learned: answers and their ends are, requests are not."""
    begin, user, assistant, end = (tokenizer.token_to_id(mark) for mark in MARKS)
    texts = [text for turn in turns for text in turn]
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    ids, learned = [begin], [0]
    for request, answer in zip(encoded[::2], encoded[1::2]):
        asked = [user, *request, end, assistant]
        ids += asked + answer + [end]
        learned += [0] * len(asked) + [1] * (len(answer) + 1)
    return ids, learned


def encode_plain(tokenizer, text):
    """The ids of a text that nobody has asked for: all of it is learned."""
    ids = [tokenizer.token_to_id(BEGIN), *tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.token_to_id(END)]
    return ids, [0] + [1] * (len(ids) - 1)


def prompt(turns):
    """The text of a conversation that waits for an answer; the last turn has a request only."""
    text = BEGIN
    for turn in turns:
        text += USER + turn[0] + END + ASSISTANT
        if len(turn) > 1:
            text += turn[1] + END
    return text
