"""The images of operator and sidecar: built, listed and checked without a registry.

    hack/images                     builds both into .cache/images, with an SBOM each, and checks them
    hack/images contexts            only writes the folders that a build of one's own takes

An image is a base with Python and nothing else of a system (`base`: Debian's packages, neither shell
nor package manager), and one folder `/app` with the wheels of the project's lock (`wheels`), put
there without a network. `sbom` lists both; `contents` says what an image may not hold; `trial` runs
it as a pod under the restricted profile would, with a root that cannot be written.
"""
