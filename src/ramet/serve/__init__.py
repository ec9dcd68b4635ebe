"""`ramet serve`: an OpenAI-compatible server whose every answer is a tree of clones within a budget.

    config = ServeConfig(engine=EngineConfig(model="my-model"), budget=Budget(tokens=4000))
    await serve(config, engine)

`errors` and `fields` read a request, `conversation`, `tools` and `schema` what is in it, `chat` and `responses` its two
formats; `asking` runs the tree; `keys`, `gate`, `storing` and `metrics` are shared by all requests; `app` and `pages`
are the ASGI application, `server` its process.
"""
