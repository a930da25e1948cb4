# An image that holds a model and nothing else, to be mounted as a volume. From the root of the tree:
#
#   docker build -f deploy/docker/model.Dockerfile -t eddy-model:tales models/kaczmarz-tales
FROM scratch
COPY . /
