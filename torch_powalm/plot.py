"""`python -m torch_powalm.plot LOG_FOLDER` draws the log of a constrained training."""

from torch_powalm.integrations.log_plot import main

if __name__ == "__main__":
    main()
