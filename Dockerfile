# docker build -t impatience . && docker run -p 8000:8000 -e IMPATIENCE_API_KEY=… -v impatience:/models impatience
FROM python:3.12-slim

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY recipes recipes
COPY src src
# The CPU build of torch; for a GPU, build with --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" "$(sed -n '/^torch==/p' constraints.txt)" \
 && pip install --no-cache-dir -c constraints.txt ".[torch,serve,write]"

RUN useradd --create-home writer && install -d -o writer /models
USER writer
WORKDIR /home/writer
ENV IMPATIENCE_CACHE=/models PYTHONUNBUFFERED=1
VOLUME /models
EXPOSE 8000
HEALTHCHECK --start-period=120s \
  CMD ["python", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:8000/healthz', timeout=5)"]
# It listens on all interfaces, so it does not start without a key.
ENTRYPOINT ["impatience", "serve", "--host", "0.0.0.0"]
