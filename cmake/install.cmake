# What `cmake --install` puts where, and the Debian packages that `cpack -G DEB` makes of it. Included
# last, and only where the server is built.
#
# Components: server, client, cuda, model. Each becomes a package, together with what only a package
# brings: its copyright file, and the service, whose unit names /usr/bin.
include(GNUInstallDirs)
option(EDDY_INSTALL_MODEL "Install the bundled model too, and make a package of it" ON)
set(EDDY_PACKAGE_CONTACT "eddy <root@localhost>" CACHE STRING "Who answers for the packages")
set(EDDY_PLUGIN_DIR lib/eddy)
set(EDDY_MODELS_DIR ${CMAKE_INSTALL_DATADIR}/eddy/models)

# dlopen() looks for the plugin where the program's own RUNPATH says.
set_target_properties(eddy-server PROPERTIES BUILD_RPATH "$ORIGIN;$ORIGIN/../${EDDY_PLUGIN_DIR}"
                      INSTALL_RPATH "$ORIGIN/../${EDDY_PLUGIN_DIR}")
install(TARGETS eddy-server RUNTIME COMPONENT server)
install(FILES README.md ARCHITECTURE.md CHANGELOG.md LICENSE
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/eddy-server COMPONENT server)
install(TARGETS eddy RUNTIME COMPONENT client)
install(DIRECTORY proto/ DESTINATION ${CMAKE_INSTALL_DATADIR}/eddy/proto COMPONENT client
        FILES_MATCHING PATTERN "*.proto")
set(packages server client)
if(EDDY_INSTALL_MODEL)
  install(DIRECTORY models/kaczmarz-tales DESTINATION ${EDDY_MODELS_DIR} COMPONENT model)
  list(APPEND packages model)
endif()
if(EDDY_CUDA)
  # Where NVIDIA's packages put cuBLASLt.
  set_target_properties(eddy_cuda PROPERTIES
                        INSTALL_RPATH /usr/local/cuda-13.0/targets/x86_64-linux/lib)
  install(TARGETS eddy_cuda LIBRARY DESTINATION ${EDDY_PLUGIN_DIR} COMPONENT cuda)
  list(APPEND packages cuda)
endif()

# What only packages have.
set(server_package eddy-server)
set(client_package eddy-client)
set(cuda_package eddy-cuda)
set(model_package eddy-model-kaczmarz-tales)
set(unit_dir lib/systemd/system)
install(FILES deploy/systemd/eddy-server.service DESTINATION ${unit_dir}
        COMPONENT server_package EXCLUDE_FROM_ALL)
install(FILES deploy/systemd/eddy-server.env DESTINATION /etc/eddy
        COMPONENT server_package EXCLUDE_FROM_ALL)
install(FILES deploy/systemd/cuda.conf DESTINATION ${unit_dir}/eddy-server.service.d
        COMPONENT cuda_package EXCLUDE_FROM_ALL)
foreach(package IN LISTS packages)
  install(FILES deploy/debian/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${${package}_package}
          COMPONENT ${package}_package EXCLUDE_FROM_ALL)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME eddy)
set(CPACK_PACKAGE_CONTACT ${EDDY_PACKAGE_CONTACT})
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(same "= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")

set(CPACK_DEBIAN_SERVER_PACKAGE_NAME ${server_package})
set(CPACK_DEBIAN_SERVER_PACKAGE_SECTION net)
set(CPACK_DEBIAN_SERVER_PACKAGE_SUGGESTS "eddy-client, eddy-cuda, eddy-model-kaczmarz-tales")
set(CPACK_DEBIAN_SERVER_DESCRIPTION "gRPC service for recurrent-state language models
The server, with a systemd service that is off until it is enabled. It runs
models on the processor; eddy-cuda adds NVIDIA GPUs.")
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA
    ${CMAKE_SOURCE_DIR}/deploy/debian/conffiles ${CMAKE_SOURCE_DIR}/deploy/debian/postinst
    ${CMAKE_SOURCE_DIR}/deploy/debian/prerm ${CMAKE_SOURCE_DIR}/deploy/debian/postrm)

set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME ${client_package})
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION net)
set(CPACK_DEBIAN_CLIENT_DESCRIPTION "command line client of eddy, and its protocol
The program eddy and the .proto files, for clients of one's own.")

set(CPACK_DEBIAN_MODEL_PACKAGE_NAME ${model_package})
set(CPACK_DEBIAN_MODEL_PACKAGE_SECTION misc)
set(CPACK_DEBIAN_MODEL_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_MODEL_DESCRIPTION "small model that tells children's stories, for eddy
Eight million parameters, trained on books in the public domain.")

# Server and plugin are halves of one build. NVIDIA's library has no Debian package that
# dpkg-shlibdeps could know of.
set(CPACK_DEBIAN_CUDA_PACKAGE_NAME ${cuda_package})
set(CPACK_DEBIAN_CUDA_PACKAGE_SECTION contrib/net)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "eddy-server (${same}), libcublas-13-0")
set(CPACK_DEBIAN_CUDA_DESCRIPTION "CUDA back end of eddy
Lets eddy-server run models on NVIDIA GPUs. Needs the driver 580 or newer, and
NVIDIA's package repository for libcublas-13-0.")
set(CPACK_DEBIAN_CUDA_PACKAGE_CONTROL_EXTRA
    ${CMAKE_SOURCE_DIR}/deploy/debian/postinst ${CMAKE_SOURCE_DIR}/deploy/debian/postrm)
if(EDDY_CUDA)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CUDAToolkit_LIBRARY_DIR})
endif()

set(CPACK_COMPONENTS_ALL)
foreach(package IN LISTS packages)
  list(APPEND CPACK_COMPONENTS_ALL ${package} ${package}_package)
endforeach()
include(CPack)
foreach(package IN LISTS packages)
  cpack_add_component_group(${package})
  cpack_add_component(${package} GROUP ${package})
  cpack_add_component(${package}_package GROUP ${package})
endforeach()
