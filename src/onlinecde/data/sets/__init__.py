"""One file a data set: files as distributed -> a `Task`. `onlinecde.data.registry` lists them."""
