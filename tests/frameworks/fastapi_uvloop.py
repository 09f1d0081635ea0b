"""FastAPI on uvicorn and uvloop, with handlers that are coroutines and functions, a dependency and a middleware."""

import asyncio
import sys

import uvicorn
from fastapi import Depends, FastAPI

import work

app = FastAPI()


@app.middleware("http")
async def measured(request, call_next):
    work.native()
    return await call_next(request)


async def session():
    await asyncio.sleep(0)
    work.array()
    yield 1


async def later(number):
    await asyncio.sleep(0.001)
    return work.handle(number)


@app.get("/{number}")
async def coroutine(number: int, _: int = Depends(session)):
    asyncio.get_running_loop().call_soon(work.native)
    results = await asyncio.gather(later(number), later(number + 1))
    return sum(results) + work.handle(number + 2)


@app.get("/function/{number}")
def function(number: int):
    return work.handle(number)


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", log_level="warning")
