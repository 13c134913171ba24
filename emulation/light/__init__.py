"""The light of an emulated lab that sorts it by wavelength, as frames in the kernel."""
