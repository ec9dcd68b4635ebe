"""Two hundred hostile cells: forms of attack, each with several sizes.

`N` in a form is replaced by a size. Together they try to fill the memory of the host, to keep its event loop busy, and
to never end.
"""

from __future__ import annotations

NEST = "x = [0] * 10\nfor i in range(N): x = [x] * 10\n"
FORMS: dict[str, tuple[int, ...]] = {
    # Shared references: small in the worker, huge as text.
    NEST + "finish(x)": (3, 5, 9, 12, 50, 500),
    NEST + "await delegate('x', context=x)": (3, 5, 9, 50),
    NEST + "await delegate(x)": (5, 9, 50),
    NEST + "await delegate('x', returns=x)": (5, 9),
    NEST + "await delegate('x', tokens=x)": (5, 9),
    NEST + "search(x)": (3, 5, 9, 50),
    NEST + "await look(x)": (5, 9),
    NEST + "echo(x)": (3, 5, 9),
    NEST + "raise ValueError(x)": (3, 5, 9),
    NEST + "print(x)": (3, 5, 9),
    "x = 'y' * N\nd = {}\nfor i in range(6): d = {1: d, 2: d, 3: d, 4: x}\nfinish(d)": (10, 1000, 100_000),
    "x = ('y',)\nfor i in range(N): x = (x, x, x)\nfinish(x)": (5, 12, 40),
    "x = []\nfor i in range(N): x = [x]\nfinish(x)": (50, 150, 5000, 100_000),
    "x = []\nfor i in range(N): x = [x]\nawait delegate('x', context=x)": (150, 5000),
    "x = {}\nfor i in range(N): x = {'a': x}\nfinish(x)": (150, 5000),
    "x = [1] * N\nx.append(x)\nfinish(x)": (1, 1000),
    "d = {}\nd['d'] = d\nawait delegate('x', context=d)": (0,),
    # Large values across the border.
    "finish('é' * N)": (1000, 1_000_000, 7_000_000, 100_000_000),
    "finish(list(range(N)))": (1000, 100_000, 1_000_000),
    "finish({str(i): i for i in range(N)})": (1000, 100_000),
    "finish([[] for i in range(N)])": (1000, 100_000, 300_000),
    "finish([i / 7 for i in range(N)])": (100_000, 600_000),
    "for i in range(300): delegate('x', context='y' * N)": (1000, 1_000_000, 8_000_000),
    "for i in range(300): delegate('y' * N)": (1000, 1_000_000),
    "for i in range(50): delegate('x', context=list(range(N)))": (1000, 100_000),
    "import asyncio\nawait asyncio.gather(*[delegate('x', context='y' * N) for i in range(60)])": (1000, 1_000_000),
    "for i in range(200): search('y' * N)": (1000, 200_000),
    "echo('漢' * N)": (1000, 2_000_000),
    "x = 'y' * N": (1_000_000, 10_000_000, 14_000_000, 20_000_000),
    "x = 'y' * N\nawait delegate('a')\nawait delegate('b')": (1_000_000, 10_000_000),
    "x = [str(i) for i in range(N)]": (10_000, 100_000, 1_000_000),
    # Errors and output.
    "raise ValueError('x' * N)": (1000, 1_000_000, 10_000_000, 30_000_000),
    "raise KeyError('é' * N)": (1000, 5_000_000),
    "assert False, '漢' * N": (1000, 4_000_000),
    "print('x' * N)": (1000, 1_000_000, 10_000_000),
    "for i in range(N): print('漢' * 1000)": (10, 3000),
    "for i in range(N): print(i, end='')": (1000, 100_000),
    "print('x' * N)\nraise ValueError('y' * N)": (1000, 1_000_000),
    "def f(n): return f(n + 1)\nf(N)": (0,),
    "1 / 0" + "\n#N" * 2000: (0,),
    "x = '" + "N" * 50 + "'\n" * 200: (0,),
    # Numbers.
    "finish(10 ** N)": (100, 4000, 5000, 100_000),
    "finish([10 ** N] * 100)": (100, 4200, 5000),
    "await delegate('x', tokens=10 ** N)": (10, 5000),
    "await delegate('x', tokens=-10 ** N)": (10, 5000),
    "await delegate(10 ** N)": (10, 5000),
    "search(10 ** N)": (10, 5000),
    "import asyncio\nawait asyncio.sleep(10 ** N)": (1, 400, 5000),
    "import asyncio\nawait asyncio.wait_for(delegate('x'), -10 ** N)": (1, 400),
    "print(2 ** N)": (100, 100_000, 100_000_000),
    # Calls without end.
    "while True: await delegate('x')": (0,),
    "while True: await delegate('x', tokens=N)": (-1, 1, 10**9),
    "while True: search('x')": (0,),
    "while True:\n  try: await look('none')\n  except Exception: pass": (0,),
    "while True: delegate('x')": (0,),
    "async def f():\n  while True: await delegate('x')\n"
    "import asyncio\nawait asyncio.gather(*[f() for i in range(N)])": (2, 20),
    "import asyncio\nasync def f():\n  while True: await asyncio.sleep(0)\nawait asyncio.gather(f(), f())": (0,),
    "import asyncio\ne = asyncio.Event()\nawait e.wait()": (0,),
    "import asyncio\nt = [asyncio.create_task(delegate('x')) for i in range(N)]": (10, 300),
    "await delegate('x', context=[str(i) for i in range(N)])": (10, 10_000),
    "await delegate('x', **{'k' * N: 1})": (10, 100_000),
    # Code.
    "x = " + "(" * 90 + "1" + ")" * 90 + "\nfinish(x)#N": (0,),
    "x = " + "-" * 3000 + "1#N": (0,),
    "import asyncio\nx = " + "[" * 150 + "]" * 150 + "\nasyncio.Event()#N": (0,),
    "import asyncio\nasyncio.Event()\n" + "x = 1 + 2 * 3 - 4\n" * 2000 + "#N": (0,),
    "import asyncio\nasyncio.Event()\n" + "-" * 5000 + "1#N": (0,),
    "import asyncio\nasyncio.Event()\nx = '" + "a" * 60_000 + "'#N": (0,),
    "finish('" + '"' * 5000 + "')#N": (0,),
    "async def f(): pass\nawait f#N": (0,),
    "class A:\n  def __repr__(self): return 'x' * N\nfinish(A())": (10, 1_000_000),
    "class A:\n  def __init__(self): self.me = self\nfinish([A() for i in range(N)])": (1, 10_000),
    "class A:\n  def __init__(self, x): self.x = x\n" + NEST + "finish(A(x))": (3, 9),
    "class A:\n  def __init__(self, x): self.x = x\n" + NEST + "await delegate('x', context=A(x))": (3, 9),
    "_aio_park(N)": (0, 10),
    "await _aio_park()#N": (0,),
    "await _aio_timer(10 ** N)": (1, 400),
    "_aio_wake(10 ** N)": (1, 5000),
    "_aio_interrupt([N])": (0,),
    "finish()#N": (0,),
    "finish(finish, search, delegate)#N": (0,),
    "finish(delegate)#N": (0,),
    "finish([int, ..., b'x' * N, range(N)])": (10, 1_000_000),
    "del context\nfinish(context)#N": (0,),
    "context = 'x' * N\nfinish(context)": (1000, 1_000_000),
    "search.x = N": (0,),
    "import json\nfinish(json.loads('[' * N + ']' * N))": (50, 500),
    "import re\nre.match('(a+)+$', 'a' * N + 'b')": (30,),
    "x = 'a' * N\nwhile True: x = x.replace('a', 'aa')": (10,),
    "sorted(range(N), key=lambda i: -i)": (1000, 500_000),
    "finish(max([str(i) * 1000 for i in range(N)]))": (100, 10_000),
    "finish({i: {j: [i, j] for j in range(N)} for i in range(N)})": (10, 300),
    "finish([context] * N)": (10, 100_000),
    "await delegate('x', context=[context] * N)": (10, 100_000),
    "finish(['é' * 1000] * N)": (10, 500, 100_000),
    "await delegate('x', context=[i / 7 for i in range(N)])": (1000, 30_000, 100_000),
    "await delegate('x', context=[10 ** 4000] * N)": (10, 1000),
    "x = await delegate('y' * N)\nfinish(x)": (10, 1_000_000),
}
# Values of every kind that hold a billion shared items, and ways in which a value leaves a cell.
HOLDERS = {
    "class A:\n  def __init__(self, x): self.x = x": "A(x)",
    "from dataclasses import dataclass\n@dataclass\nclass A:\n  x: list": "A(x)",
    "from collections import namedtuple\nP = namedtuple('P', 'x')": "P(x)",
    "class A(Exception): pass": "A(x)",
    "class A: pass\na = A()\nfor i in range(40):\n  b = A()\n  b.l = a\n  b.r = a\n  a = b": "a",
    "y = 1": "ValueError(x)",
    "z = 1": "{'a': x}.items()",
}
WAYS = (
    "finish(V)",
    "finish([V])",
    "search(V)",
    "await delegate(V)",
    "await delegate('x', context=V)",
    "assert False, V",
)
CELLS = [form.replace("N", str(size)) for form, sizes in FORMS.items() for size in sizes]
CELLS += [
    f"{NEST.replace('N', '9')}{holder}\n{way.replace('V', value)}" for holder, value in HOLDERS.items() for way in WAYS
]

# For the suite: those that are quick to run and have each done harm in some way.
SAMPLE = [
    NEST.replace("N", "9") + "finish(x)",
    NEST.replace("N", "9") + "await delegate('x', context=x)",
    "x = [1] * 1000\nx.append(x)\nfinish(x)",
    "finish('é' * 7000000)",
    "for i in range(300): delegate('x', context='y' * 1000000)",
    "await delegate('x', context=[10 ** 4000] * 1000)",
    "raise ValueError('x' * 10000000)",
    "await delegate('x', tokens=-10 ** 5000)",
    "while True: search('x')",
    "import asyncio\nasyncio.Event()\n" + "x = 1 + 2 * 3 - 4\n" * 2000,
    "finish(['é' * 1000] * 100000)",
    NEST.replace("N", "9") + "class A:\n  def __init__(self, x): self.x = x\nfinish(A(x))",
]
