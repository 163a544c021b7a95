"""Turn text into tokens: the text is split as in the harness and encoded as in Floatscope.

Text never becomes special tokens, except text to which a chat template was applied. This module runs no
model.
"""

from functools import cached_property
from typing import Any

from lm_eval.api.model import TemplateLM

from ..errors import UsageError
from ..instrument import Model
from ..sequences.chat import rendered
from ..sequences.prompt import leading


class TextLM(TemplateLM):
    """The part of the harness's interface that needs only a tokenizer."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        if model.tokenizer is None:
            raise UsageError(
                f"{model.name} has no tokenizer", "Load it with load(..., tokenizer=)."
            )
        self.model, self.tokenizer = model, model.tokenizer
        self._rendered: set[str] = set()  # texts that the chat template produced

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        chat: bool | None = None,
        **_: Any,
    ) -> list[int]:
        """Return token ids as for a plain Prompt; text from the chat template gets no leading tokens."""
        chat = self._is_chat(string) if chat is None else chat
        leads = not chat if add_special_tokens is None else add_special_tokens
        how = {"add_special_tokens": False, "split_special_tokens": not chat}
        ids: list[int] = self.tokenizer(string, **how)["input_ids"] if string else []
        return [*leading(self.tokenizer), *ids] if leads else ids

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the token ids of context and continuation; spaces between them go to the continuation."""
        head = context.rstrip()
        tail = context[len(head) :] + continuation
        if not head:
            return [self.prefix_token_id], self.tok_encode(tail, False, chat=False)
        chat = self._is_chat(context)
        ids = self.tok_encode(head, chat=chat)
        return ids, self.tok_encode(head + tail, chat=chat)[len(ids) :]

    def _prompt(self, context: str) -> list[int]:
        return self.tok_encode(context) or [self.prefix_token_id]

    @property
    def eot_token_id(self) -> int:
        if not self.model.end_ids:
            raise UsageError(f"{self.model.name} has no end token", "Give texts a context.")
        return self.model.end_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """Id of the token that precedes a text without context: the begin token, else the end token."""
        begin: int | None = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else begin

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path or self.model.name).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        if chat_template:
            self._check_chat()
        template: str | None = super().chat_template(chat_template)
        return template

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        self._check_chat()
        arguments = self.model.template_arguments
        text = rendered(
            self.tokenizer,
            chat_history,
            self.model.name,
            answer=add_generation_prompt,
            **arguments,
        )
        self._rendered.add(text)
        return text

    def _check_chat(self) -> None:
        if not getattr(self.tokenizer, "chat_template", None):
            raise UsageError(
                f"{self.model.name} has no chat template", "Leave out --apply_chat_template."
            )

    def _is_chat(self, text: str) -> bool:
        """Return whether a text comes from the chat template, applied now or in an earlier run."""
        return text in self._rendered or bool(self._opening and text.startswith(self._opening))

    @cached_property
    def _opening(self) -> str:
        """Text of the special token with which the chat template begins; "" if there is none."""
        if not self.model.chat:
            return ""
        turn = [{"role": "user", "content": "a"}]
        text = rendered(self.tokenizer, turn, self.model.name, **self.model.template_arguments)
        names = [self.tokenizer.decode([i]) for i in self.model.special_ids]
        return max((name for name in names if name and text.startswith(name)), key=len, default="")
