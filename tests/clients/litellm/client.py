"""LiteLLM through the proxy, sync, async and streaming: python client.py BASE_URL TOKEN."""

import asyncio
import sys

import litellm

litellm.suppress_debug_info = True
options = {
    "model": "openai/m",
    "api_base": sys.argv[1],
    "api_key": sys.argv[2],
    "num_retries": 0,
    "max_retries": 0,
    "messages": [{"role": "user", "content": "My dog's name?"}],
    "extra_headers": {"X-DeltaMem-Session": "litellm"},
}


def text(parts):
    return "".join(part.choices[0].delta.content or "" for part in parts)


async def main():
    print((await litellm.acompletion(**options)).choices[0].message.content)
    print(text([part async for part in await litellm.acompletion(**options, stream=True)]))


print(litellm.completion(**options).choices[0].message.content)
print(text(litellm.completion(**options, stream=True)))
asyncio.run(main())
try:
    litellm.completion(**options | {"api_key": "wrong"})
except litellm.AuthenticationError:
    print("refused")
