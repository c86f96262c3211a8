"""Operations in event loops."""

import asyncio


async def awaited(work):
    """Waits for ``work`` without holding up the loop."""
    loop = asyncio.get_running_loop()
    is_over = loop.create_future()

    def tell():
        if not is_over.done():
            is_over.set_result(None)

    def wake(_):
        try:
            loop.call_soon_threadsafe(tell)
        except RuntimeError:  # The loop was closed, so nobody waits any more.
            pass

    work.add_done_callback(wake)
    await is_over
    return work.wait()
